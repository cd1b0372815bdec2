/* A library that stands between foreswap's object and the C library, as tcmalloc, MPI's registration caches and
 * sanitizers do: it defines functions of the C library, and makes their system calls by `syscall`. Its own memory, which
 * it writes to in each call, is the program's. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Static data that may be swapped out. */
static volatile unsigned long calls[1 << 20];

static void count(unsigned long which)
{
    calls[(which * 4099) % (1 << 20)]++;
}

void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset)
{
    count(1);
    return (void *)syscall(SYS_mmap, at, length, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t length, int protection, int flags, int fd, off_t offset)
{
    count(2);
    return (void *)syscall(SYS_mmap, at, length, protection, flags, fd, offset);
}

int munmap(void *at, size_t length)
{
    count(3);
    return syscall(SYS_munmap, at, length);
}

void *mremap(void *at, size_t old, size_t new, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    void *to = va_arg(more, void *);
    va_end(more);
    count(4);
    return (void *)syscall(SYS_mremap, at, old, new, flags, to);
}

int madvise(void *at, size_t length, int advice)
{
    count(5);
    return syscall(SYS_madvise, at, length, advice);
}

int ioctl(int fd, unsigned long request, ...)
{
    va_list more;
    va_start(more, request);
    void *argument = va_arg(more, void *);
    va_end(more);
    count(6);
    return syscall(SYS_ioctl, fd, request, argument);
}

int mlockall(int flags)
{
    count(7);
    return syscall(SYS_mlockall, flags);
}

ssize_t read(int fd, void *to, size_t length)
{
    count(8);
    return syscall(SYS_read, fd, to, length);
}

ssize_t write(int fd, const void *from, size_t length)
{
    count(9);
    return syscall(SYS_write, fd, from, length);
}

void *memcpy(void *to, const void *from, size_t length)
{
    char *t = to;
    const char *f = from;
    count(10);
    while (length--)
        *t++ = *f++;
    return to;
}
