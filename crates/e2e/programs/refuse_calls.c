/* refuse_calls NAME[,NAME...] COMMAND...: executes COMMAND under a seccomp filter that refuses these system calls with
 * EPERM, as the profiles of containers do. */
#include "check.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

static const struct { const char *name; int number; } CALLS[] = {
    {"userfaultfd", SYS_userfaultfd},
    {"io_uring", SYS_io_uring_setup},
    {"pidfd_open", SYS_pidfd_open},
    {"kcmp", SYS_kcmp},
};

static int number_of(const char *name)
{
    for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++)
        if (strcmp(CALLS[i].name, name) == 0)
            return CALLS[i].number;
    CHECK(0, "an unknown call");
    return -1;
}

int main(int argc, char **argv)
{
    struct sock_filter filter[64] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    unsigned short length = 1;
    CHECK(argc > 2, "names and a command are needed");
    for (char *name = strtok(argv[1], ","); name; name = strtok(NULL, ",")) {
        struct sock_filter refused[] = {
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number_of(name), 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        };
        filter[length++] = refused[0];
        filter[length++] = refused[1];
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {length, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "the filter");
    execvp(argv[2], argv + 2);
    CHECK(0, "exec");
}
