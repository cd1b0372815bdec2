/* exec_environment WAY PROGRAM PART: executes PROGRAM with an environment of one variable, in one of many ways. */
#include "check.h"

#include <libgen.h>
#include <spawn.h>

static void wait_for(pid_t pid)
{
    exit(reap(pid));
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "a way, a program and its part are needed");
    const char *way = argv[1];
    char *program = argv[2], *part = argv[3];
    char *arguments[] = {program, part, NULL}, *environment[] = {"ONLY=this", NULL};
    char folder[4096], name[4096];
    snprintf(folder, sizeof folder, "%s", program);
    snprintf(name, sizeof name, "%s", program);
    char *base = basename(name);
    CHECK(setenv("PATH", dirname(folder), 1) == 0, "PATH");
    pid_t pid;
    if (strcmp(way, "execve") == 0)
        execve(program, arguments, environment);
    if (strcmp(way, "execle") == 0)
        execle(program, program, part, (char *)NULL, environment);
    if (strcmp(way, "execvpe") == 0)
        execvpe(base, arguments, environment);
    if (strcmp(way, "fexecve") == 0)
        fexecve(open(program, O_RDONLY | O_CLOEXEC), arguments, environment);
    if (strcmp(way, "execveat") == 0)
        execveat(AT_FDCWD, program, arguments, environment, 0);
    if (strcmp(way, "posix_spawn") == 0 && posix_spawn(&pid, program, NULL, NULL, arguments, environment) == 0)
        wait_for(pid);
    if (strcmp(way, "posix_spawnp") == 0 && posix_spawnp(&pid, base, NULL, NULL, arguments, environment) == 0)
        wait_for(pid);
    if (strcmp(way, "vfork") == 0) {
        pid = vfork();
        if (pid == 0) {
            execve(program, arguments, environment);
            _exit(97);
        }
        wait_for(pid);
    }
    /* The others take the environment from the C library. */
    char *with_path[] = {strdup(getenv("PATH") - strlen("PATH=")), NULL};
    environ = with_path;
    if (strcmp(way, "execl") == 0)
        execl(program, program, part, (char *)NULL);
    if (strcmp(way, "execl_long") == 0)
        execl("/bin/sh", "sh", "-c", "\"$6\" \"$7\"", "0", "1", "2", "3", "4", "5", program, part, (char *)NULL);
    if (strcmp(way, "execlp") == 0)
        execlp(base, program, part, (char *)NULL);
    if (strcmp(way, "execv") == 0)
        execv(program, arguments);
    if (strcmp(way, "execvp") == 0)
        execvp(base, arguments);
    CHECK(0, "%s did not execute", way);
}
