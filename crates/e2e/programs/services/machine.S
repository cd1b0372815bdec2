# The start of a multiboot kernel: 32 bits, no paging, a stack.
    .text
    .code32
    .align 4
    .long 0x1badb002, 0, -0x1badb002
    .globl _start
_start:
    mov $stack_top, %esp
    call kernel
1:  hlt
    jmp 1b
    .bss
    .align 16
    .skip 16384
stack_top:
    .section .note.GNU-stack,"",@progbits
