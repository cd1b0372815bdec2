//! A loaded module's symbols, as the dynamic linker sees them.
//!
//! The linker's own lookup (`dlsym`) finds the first definition in the search order. The definition of one module needs
//! `dlopen` for its handle, and `dlopen` before the C library's constructor has run initializes that library without
//! an environment: `environ` then stays null for the whole program. The tables are therefore read here.

use core::ffi::CStr;
use core::ptr::without_provenance;

const DT_NULL: usize = 0;
const DT_PLTRELSZ: usize = 2;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_RELA: usize = 7;
const DT_RELASZ: usize = 8;
const DT_JMPREL: usize = 23;
const DT_GNU_HASH: usize = 0x6fff_fef5;
const DT_VERSYM: usize = 0x6fff_fff0;
const DT_RELACOUNT: usize = 0x6fff_fff9;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
const R_X86_64_64: u32 = 1;
const R_X86_64_GLOB_DAT: u32 = 6;
const R_X86_64_JUMP_SLOT: u32 = 7;
/// In the version of a symbol: not the default version of its name.
const HIDDEN: u16 = 0x8000;

/// The dynamic tables of a module, by address; zero where the module has none.
pub struct Symbols {
    base: usize,
    symbols: usize,
    strings: usize,
    versions: usize,
    hash: usize,
    /// Address, index of the first entry of use, bytes.
    relocations: [(usize, usize, usize); 2],
}

impl Symbols {
    /// `module` are the load address of a module and that of its dynamic section; `None` if these are zeros.
    ///
    /// # Safety
    /// They are, and the module stays loaded.
    pub unsafe fn of(module: (usize, usize)) -> Option<Self> {
        let (base, mut dynamic) = module;
        if dynamic == 0 {
            return None;
        }
        let [mut rela, mut rela_len, mut relative, mut plt, mut plt_len] = [0; 5];
        let [mut symbols, mut strings, mut versions, mut hash] = [0; 4];
        loop {
            // SAFETY: the section's entries are read up to the one that ends it.
            let [tag, value] = unsafe { without_provenance::<[usize; 2]>(dynamic).read() };
            match tag {
                DT_NULL => break,
                DT_RELA => rela = value,
                DT_RELASZ => rela_len = value,
                DT_RELACOUNT => relative = value,
                DT_JMPREL => plt = value,
                DT_PLTRELSZ => plt_len = value,
                DT_SYMTAB => symbols = value,
                DT_STRTAB => strings = value,
                DT_VERSYM => versions = value,
                DT_GNU_HASH => hash = value,
                _ => {}
            }
            dynamic += size_of::<[usize; 2]>();
        }
        // Some linkers leave the section as it is in the file.
        let [rela, plt, symbols, strings, versions, hash] =
            [rela, plt, symbols, strings, versions, hash].map(|at| match at {
                0 => 0,
                at if at < base => at + base,
                at => at,
            });
        Some(Symbols {
            base,
            symbols,
            strings,
            versions,
            hash,
            relocations: [(rela, relative, rela_len), (plt, 0, plt_len)],
        })
    }

    /// Calls `found` for each address that the linker has put into the module: its name, whether it is a function's,
    /// and its place.
    pub fn relocations(&self, mut found: impl FnMut(&CStr, bool, *mut usize)) {
        for (table, first, len) in self.relocations {
            for index in first..len / size_of::<libc::Elf64_Rela>() {
                // SAFETY: one of the table's entries.
                let entry = unsafe {
                    without_provenance::<libc::Elf64_Rela>(table)
                        .add(index)
                        .read()
                };
                let kind = entry.r_info as u32;
                if !matches!(kind, R_X86_64_64 | R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT) {
                    continue;
                }
                // SAFETY: a symbol that the entry names.
                let (name, symbol) = unsafe { self.symbol((entry.r_info >> 32) as usize) };
                let place = self.base.wrapping_add(entry.r_offset as usize);
                found(
                    name,
                    symbol.st_info & 0xf == STT_FUNC,
                    core::ptr::without_provenance_mut(place),
                );
            }
        }
    }

    /// The module's definition of a function, in its default version.
    pub fn function(&self, name: &CStr) -> Option<usize> {
        let index = self.candidates(hash_of(name), |index| {
            // SAFETY: an index of the hash table.
            let (candidate, symbol) = unsafe { self.symbol(index) };
            candidate == name
                && symbol.st_shndx != 0
                && matches!(symbol.st_info & 0xf, STT_FUNC | STT_GNU_IFUNC)
                && !self.is_hidden(index)
        })?;
        // SAFETY: as above.
        let (_, symbol) = unsafe { self.symbol(index) };
        let at = self.base.wrapping_add(symbol.st_value as usize);
        if symbol.st_info & 0xf != STT_GNU_IFUNC {
            return Some(at);
        }
        // SAFETY: such a symbol is a function that returns the address of the one for this processor. The module is
        // relocated.
        let choose = unsafe {
            core::mem::transmute::<*const (), extern "C" fn() -> usize>(without_provenance(at))
        };
        Some(choose())
    }

    /// The first index with this hash that `is_wanted`. The table: four words (buckets, the first index in it, words of
    /// the filter, shift), the filter, the first index of each bucket, and a hash for each index, whose lowest bit ends
    /// a chain.
    fn candidates(&self, hash: u32, is_wanted: impl Fn(usize) -> bool) -> Option<usize> {
        if self.hash == 0 {
            return None;
        }
        // SAFETY: the linker reads the same words of this table.
        let word = |at: usize| unsafe { without_provenance::<u32>(self.hash).add(at).read() };
        let (buckets, first, filter) = (word(0), word(1), word(2) as usize * 2);
        let mut index = word(4 + filter + (hash % buckets.max(1)) as usize);
        if buckets == 0 || index < first {
            return None;
        }
        loop {
            let entry = word(4 + filter + buckets as usize + (index - first) as usize);
            if entry | 1 == hash | 1 && is_wanted(index as usize) {
                return Some(index as usize);
            }
            if entry & 1 != 0 {
                return None;
            }
            index += 1;
        }
    }

    /// # Safety
    /// The module has this symbol.
    unsafe fn symbol(&self, index: usize) -> (&CStr, libc::Elf64_Sym) {
        // SAFETY: the caller's promise; names are zero-terminated.
        unsafe {
            let symbol = without_provenance::<libc::Elf64_Sym>(self.symbols)
                .add(index)
                .read();
            let name = self.strings + symbol.st_name as usize;
            (CStr::from_ptr(without_provenance(name)), symbol)
        }
    }

    fn is_hidden(&self, index: usize) -> bool {
        // SAFETY: the table has an entry for each symbol.
        self.versions != 0
            && unsafe { without_provenance::<u16>(self.versions).add(index).read() } & HIDDEN != 0
    }
}

/// The hash of DT_GNU_HASH.
fn hash_of(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381_u32, |hash, byte| {
        hash.wrapping_mul(33).wrapping_add(u32::from(*byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_void;

    /// The C library's tables, by its address.
    fn libc_symbols() -> Symbols {
        unsafe extern "C" fn look(
            info: *mut libc::dl_phdr_info,
            _: usize,
            found: *mut c_void,
        ) -> i32 {
            // SAFETY: the linker's promise, and the caller's argument.
            let (info, found) = unsafe { (&*info, &mut *found.cast::<(usize, usize)>()) };
            let base = info.dlpi_addr as usize;
            // SAFETY: as above.
            let headers =
                unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
            let holds = headers.iter().any(|header| {
                let start = base + header.p_vaddr as usize;
                header.p_type == libc::PT_LOAD
                    && (start..start + header.p_memsz as usize)
                        .contains(&(libc::__errno_location as *const () as usize))
            });
            let dynamic = headers
                .iter()
                .find(|header| header.p_type == libc::PT_DYNAMIC);
            if let Some(dynamic) = dynamic.filter(|_| holds) {
                *found = (base, base + dynamic.p_vaddr as usize);
            }
            0
        }
        let mut found = (0_usize, 0_usize);
        // SAFETY: the callback gets its expected argument; the C library stays.
        unsafe {
            libc::dl_iterate_phdr(Some(look), (&raw mut found).cast());
            Symbols::of(found).expect("the C library has a dynamic section")
        }
    }

    #[test]
    fn finds_what_the_linker_finds() {
        let symbols = libc_symbols();
        for name in [
            c"read",
            c"memcpy",
            c"memset",
            c"strlen",
            c"realpath",
            c"qsort",
            c"getenv",
        ] {
            // SAFETY: nothing in a test's process precedes the C library.
            let linkers = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
            assert_ne!(linkers, 0, "{name:?}");
            assert_eq!(symbols.function(name), Some(linkers), "{name:?}");
        }
        for name in [c"", c"no_such_function", c"environ"] {
            assert_eq!(symbols.function(name), None, "{name:?}");
        }
    }
}
