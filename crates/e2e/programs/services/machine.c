/* The only program of a virtual machine: fills MEBIBYTES of its memory, verifies it out of order, twice, reports
 * over the serial port, and ends the emulator by its exit device (status 2 * value + 1). */
typedef unsigned int u32;

#define FIRST (16u << 20)

static void outb(unsigned short port, unsigned char value)
{
    __asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port));
}

static unsigned char inb(unsigned short port)
{
    unsigned char value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static void say(const char *text)
{
    for (; *text != 0; text++) {
        while ((inb(0x3fd) & 0x20) == 0)
            ;
        outb(0x3f8, *text);
    }
}

static void say_number(u32 number)
{
    char text[9] = {0};
    for (int i = 7; i >= 0; i--, number >>= 4)
        text[i] = "0123456789abcdef"[number & 15];
    say(text);
}

static u32 value(u32 at, u32 round)
{
    u32 x = at * 2654435761u + round * 40503u;
    x ^= x >> 15;
    x *= 2246822519u;
    return x ^ (x >> 13);
}

void kernel(void)
{
    volatile u32 *memory = (volatile u32 *)FIRST;
    const u32 pages = MEBIBYTES << 8;
    u32 wrong = 0, sum = 0;
    for (u32 round = 0; round < 2; round++) {
        for (u32 i = 0; i < pages << 10; i += 4) {
            u32 v = value(i, round);
            memory[i] = v;
            memory[i + 1] = v + 1;
            memory[i + 2] = ~v;
            memory[i + 3] = v * 5;
        }
        say("filled\n");
        /* The step is a prime: every page's turn comes. */
        for (u32 n = 0, page = 0; n < pages; n++, page = (page + 40487u) % pages)
            for (u32 i = page << 10; i < (page + 1) << 10; i += 4) {
                u32 v = value(i, round);
                wrong += memory[i] != v || memory[i + 1] != v + 1 || memory[i + 2] != ~v || memory[i + 3] != v * 5;
                sum = sum * 31 + memory[i];
            }
        say("verified, wrong ");
        say_number(wrong);
        say(", digest ");
        say_number(sum);
        say("\n");
    }
    outb(0xf4, wrong == 0 ? 16 : 1);
}
