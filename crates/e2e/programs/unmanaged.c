/* Holds 96 MiB (or the given size) of memory that foreswap does not manage, of the given kind, prints a line, and
 * waits for a file: unmanaged KIND MEBIBYTES FILE */
#include "check.h"

static size_t size;
static const char *stop;

static void *mapped(int flags, int fd)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);
    CHECK(p != MAP_FAILED, "mmap");
    return p;
}

static void *shared(void) { return mapped(MAP_SHARED | MAP_ANONYMOUS, -1); }

static void *memory_file(void)
{
    int fd = memfd_create("held", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, size) == 0, "a memfd");
    return mapped(MAP_SHARED, fd);
}

static int new_file(const char *folder)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, size) == 0, "a file in %s", folder);
    return fd;
}

static void *tmpfs_file(void) { return mapped(MAP_SHARED, new_file("/dev/shm")); }
static void *file_copies(void) { return mapped(MAP_PRIVATE, new_file("/tmp")); }
static void *private(void) { return mapped(MAP_PRIVATE | MAP_ANONYMOUS, -1); }

static void *locked(void)
{
    void *p = private();
    CHECK(mlock(p, size) == 0, "mlock");
    return p;
}

static void hold(char *p)
{
    fill(p, size, 5);
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < 3000 && access(stop, F_OK) != 0; i++)
        usleep(20000);
    VERIFY(p, size, 5, "what was held");
}

/* All of them use the same memory. */
static void with_children(void)
{
    char *p = shared();
    fill(p, size, 5);
    pid_t children[4];
    for (int i = 0; i < 4; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0, "fork");
        if (children[i] == 0) {
            VERIFY(p, size, 5, "a child's");
            while (access(stop, F_OK) != 0)
                usleep(20000);
            _exit(0);
        }
    }
    hold(p);
    for (int i = 0; i < 4; i++)
        CHECK(reap(children[i]) == 0, "a child");
}

static int beside(void *nothing)
{
    (void)nothing;
    while (access(stop, F_OK) != 0)
        usleep(20000);
    return 0;
}

/* Another process has the very same address space. */
static void with_another_beside(void)
{
    char *p = shared();
    char *stack = malloc(MIB);
    pid_t other = clone(beside, stack + MIB, CLONE_VM | SIGCHLD, NULL);
    CHECK(other > 0, "clone");
    hold(p);
    CHECK(reap(other) == 0, "the other");
}

static void *on_stack(void *nothing)
{
    char p[size] __attribute__((aligned(4096)));
    hold(p);
    return nothing;
}

static void thread_stack(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    CHECK(pthread_attr_setstacksize(&attributes, size + MIB) == 0, "a stack size");
    CHECK(pthread_create(&thread, &attributes, on_stack, NULL) == 0, "a thread");
    CHECK(pthread_join(thread, NULL) == 0, "its end");
}

static void *alone(void *p)
{
    hold(p);
    printf("as it should be\n");
    fflush(stdout);
    exit(0);
}

/* The first thread ends; the kernel's view of the process by its pid is empty from then on. */
static void without_first_thread(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, alone, shared()) == 0, "a thread");
    pthread_exit(NULL);
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "KIND MEBIBYTES FILE");
    size = strtoul(argv[2], NULL, 10) * MIB;
    stop = argv[3];
    const struct {
        const char *name;
        void *(*memory)(void);
    } kinds[] = {
        {"shared", shared},   {"memfd", memory_file}, {"tmpfs", tmpfs_file},
        {"files", file_copies}, {"private", private}, {"locked", locked},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(argv[1], kinds[i].name) == 0)
            hold(kinds[i].memory());
    if (strcmp(argv[1], "children") == 0)
        with_children();
    if (strcmp(argv[1], "beside") == 0)
        with_another_beside();
    if (strcmp(argv[1], "stacks") == 0)
        thread_stack();
    if (strcmp(argv[1], "headless") == 0)
        without_first_thread();
    printf("as it should be\n");
    return 0;
}
