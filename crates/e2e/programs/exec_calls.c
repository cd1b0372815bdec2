/* exec_calls PROGRAM: starts PROGRAM in every way of the C library, in children of fork or vfork. Each prints
 * PROGRAM's output, or else errno. PROGRAM gets the argument "tasks". Copies of PROGRAM are named after the ways,
 * to tell them apart: PROGRAM.execv, PROGRAM.execl, and so on. */
#include "check.h"

#include <spawn.h>

extern char **environ;
static char path[4096];
static const char *name;

/* The copy's path, and its name alone, which is found through PATH. */
static void choose(const char *program, const char *way)
{
    snprintf(path, sizeof path, "%s.%s", program, way);
    name = strrchr(path, '/') + 1;
}

static void await(const char *way, pid_t pid)
{
    int status;
    CHECK(waitpid(pid, &status, 0) == pid, "%s", way);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: status %x", way, status);
}

#define IN_CHILD(way, make, exec)                                             \
    do {                                                                      \
        choose(argv[1], way);                                                 \
        fflush(stdout);                                                       \
        pid_t pid = make();                                                   \
        if (pid == 0) {                                                       \
            exec;                                                             \
            _exit(98);                                                        \
        }                                                                     \
        await(way, pid);                                                      \
    } while (0)

#define SPAWNED(way, spawn, what)                                             \
    do {                                                                      \
        pid_t pid;                                                            \
        choose(argv[1], way);                                                 \
        fflush(stdout);                                                       \
        CHECK(spawn(&pid, what, NULL, NULL, args, environ) == 0, way);        \
        await(way, pid);                                                      \
    } while (0)

#define FAILS(call, why)                                                      \
    do {                                                                      \
        errno = 0;                                                            \
        CHECK(call == -1 && errno == why, "wrong errno");                     \
    } while (0)

int main(int argc, char **argv)
{
    CHECK(argc == 2, "a program is needed");
    char *args[] = {"program", "tasks", NULL};
    char folder[4096];
    snprintf(folder, sizeof folder, "/nonexistent:%s", argv[1]);
    *strrchr(folder, '/') = 0;
    CHECK(setenv("PATH", folder, 1) == 0, "PATH");

    IN_CHILD("execve", fork, execve(path, args, environ));
    IN_CHILD("vforked", vfork, execve(path, args, environ));
    IN_CHILD("execv", fork, execv(path, args));
    IN_CHILD("execvp", vfork, execvp(name, args));
    IN_CHILD("execvpe", fork, execvpe(name, args, environ));
    IN_CHILD("fexecve", fork, fexecve(open(path, O_PATH | O_CLOEXEC), args, environ));
    IN_CHILD("execveat", fork, execveat(AT_FDCWD, path, args, environ, 0));
    IN_CHILD("execl", vfork, execl(path, "a", "tasks", NULL));
    IN_CHILD("execlp", fork, execlp(name, "a", "tasks", "c", "d", "e", "f", "g", "h", NULL));
    IN_CHILD("execle", fork, execle(path, "a", "tasks", NULL, environ));
    IN_CHILD("execle_long", fork, execle(path, "a", "tasks", "c", "d", "e", "f", "g", "h", NULL, environ));
    SPAWNED("posix_spawn", posix_spawn, path);
    SPAWNED("posix_spawnp", posix_spawnp, name);

    /* A program that does not start is not reported to run, and fails as ever. */
    choose(argv[1], "missing");
    FAILS(execve(path, args, environ), ENOENT);
    FAILS(execvp(name, args), ENOENT);
    FAILS(execlp("", "a", NULL), ENOENT);
    FAILS(execv("/", args), EACCES);
    FAILS(fexecve(-1, args, environ), EINVAL);
    FAILS(execveat(-1, "x", args, environ, 0), EBADF);
    choose(argv[1], "forbidden");
    FAILS(execl(path, "a", NULL), EACCES);
    printf("all done\n");
    return 0;
}
