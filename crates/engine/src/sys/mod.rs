//! Thin modules over the kernel: each hides one interface.

pub mod arena_alloc;
pub mod beside;
pub mod cpu;
pub mod doorbell;
pub mod elf;
pub mod gate;
pub mod handed;
pub mod host;
pub mod interrupts;
pub mod lease;
pub(crate) mod limits;
pub mod locks;
pub mod mapping_at;
pub mod maps;
pub mod modules;
pub mod mremap_lock;
pub mod needed;
pub mod own_memory;
pub mod process;
pub mod secret_page;
pub mod stacks;
pub(crate) mod syscall;
pub mod thread;
pub mod uffd;
