//! Names of errno values without the C library.
//!
//! `strerror` reads the thread's locale, which the engine's threads lack: formatting a `std::io::Error` there would
//! crash. Errors that can occur in the engine therefore carry the number and are spelled out here.

/// The symbol and the meaning of the errno values that I/O on a swap area can produce.
pub(crate) fn describe(errno: i32) -> &'static str {
    match errno {
        1 => "EPERM: operation not permitted",
        2 => "ENOENT: no such file",
        4 => "EINTR: interrupted",
        5 => "EIO: the device reported an I/O error",
        6 => "ENXIO: no such device",
        9 => "EBADF: the file is not open for this",
        11 => "EAGAIN: temporarily unavailable",
        12 => "ENOMEM: out of kernel memory",
        13 => "EACCES: permission denied",
        14 => "EFAULT: bad memory address",
        16 => "EBUSY: in use",
        19 => "ENODEV: the device is gone",
        22 => "EINVAL: refused, perhaps not aligned to the device's block size",
        23 => "ENFILE: too many open files in the system",
        24 => "EMFILE: too many open files in the process",
        27 => "EFBIG: beyond the file size limit (ulimit -f) or the file system's",
        28 => "ENOSPC: no space left",
        30 => "EROFS: read-only file system",
        38 => "ENOSYS: not offered by this kernel",
        61 => "ENODATA: the device lost the data",
        84 => "EILSEQ: the device's data failed its checksum",
        95 => "EOPNOTSUPP: not supported",
        104 => "ECONNRESET: the server went away in the middle of the write",
        110 => "ETIMEDOUT: no answer in time",
        112 => "EHOSTDOWN: foreswap's relay to the server has ended",
        121 => "EREMOTEIO: remote I/O error",
        122 => "EDQUOT: quota exceeded",
        125 => "ECANCELED: cancelled",
        _ => "see errno(3)",
    }
}
