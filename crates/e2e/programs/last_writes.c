/* A process is killed while the disk still has its writes, and another takes its place. The writes of the first
 * must not appear in the other's memory. argv[1] is the `tasks` of a blkio cgroup that writes slowly, argv[2] the
 * swap area. */
#include "check.h"

#define SIZE (160 * MIB)

static void writes_slowly(const char *tasks)
{
    FILE *file = fopen(tasks, "we");
    CHECK(file && fputs("0", file) >= 0 && fclose(file) == 0, "joining %s", tasks);
    char *p = map(SIZE);
    for (uint64_t round = 0;; round++)
        fill(p, SIZE, round);
}

/* Whether some process or transfer has the area open as managed processes do. */
static int is_open_by_somebody(const char *area)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open(area, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0 && fcntl(fd, F_OFD_GETLK, &lock) == 0, "%s", area);
    close(fd);
    return lock.l_type != F_UNLCK;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "a cgroup's tasks and an area");
    pid_t first = fork();
    CHECK(first >= 0, "fork");
    if (first == 0)
        writes_slowly(argv[1]);
    sleep(1);
    CHECK(kill(first, SIGKILL) == 0 && reap(first) == 128 + SIGKILL, "the first one's end");
    note("outlived", is_open_by_somebody(argv[2]));

    char *p = map(SIZE);
    fill(p, SIZE, ~0UL);
    /* By now the writes of the first have arrived. */
    sleep(4);
    note_absent("absent", p, SIZE);
    VERIFY(p, SIZE, ~0UL, "after the other's last writes");
    printf("as it should be\n");
    return 0;
}
