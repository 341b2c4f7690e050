/* The process that holds a pod's namespaces open: reaps nothing, wants nothing, ends when told. */
#include <signal.h>
#include <unistd.h>

static void end(int signal_number)
{
    (void)signal_number;
    _exit(0);
}

int main(void)
{
    signal(SIGTERM, end);
    signal(SIGINT, end);
    for (;;)
        pause();
}
