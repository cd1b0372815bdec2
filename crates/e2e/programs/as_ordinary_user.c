/* as_ordinary_user with|without COMMAND...: executes COMMAND as the user "nobody", with or without access to
 * /dev/userfaultfd. The access is a copy of the device node in its own mount namespace: the system's node stays as
 * it is. */
#include "check.h"

#include <grp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#define NOBODY 65534

int main(int argc, char **argv)
{
    CHECK(argc > 2, "with|without and a command are needed");
    int with = strcmp(argv[1], "with") == 0;
    struct stat device;
    CHECK(stat("/dev/userfaultfd", &device) == 0, "/dev/userfaultfd");
    CHECK(unshare(CLONE_NEWNS) == 0, "a mount namespace");
    CHECK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0, "private mounts");
    /* /mnt serves as the place of the copy, in this namespace only. */
    CHECK(mount("foreswap-e2e", "/mnt", "tmpfs", 0, "mode=755") == 0, "a tmpfs");
    CHECK(mknod("/mnt/userfaultfd", S_IFCHR | 0600, device.st_rdev) == 0, "a device node");
    CHECK(chmod("/mnt/userfaultfd", with ? 0666 : 0600) == 0, "its mode");
    CHECK(mount("/mnt/userfaultfd", "/dev/userfaultfd", NULL, MS_BIND, NULL) == 0, "a bind mount");
    CHECK(setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0, "another user");
    CHECK(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0, "dumpable");
    int fd = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
    CHECK((fd >= 0) == with, "access is not as it should be");
    execvp(argv[2], argv + 2);
    CHECK(0, "exec");
}
