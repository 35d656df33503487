#ifndef RCSOCK_LIB_BASE_OLD_GLIBC_FORWARD_H_
#define RCSOCK_LIB_BASE_OLD_GLIBC_FORWARD_H_

// Defines a hidden function that goes on to another library's function of this
// name. The first call asks `find` for it:
//
//   extern "C" void* find(const char* name);
//
// The other function gets the arguments, and the caller, of its own. Threads
// that race for the slot store equal values. The function takes no more than
// four arguments.
#define RCSOCK_FORWARD(name, find)                           \
  __asm__(                                                   \
      ".pushsection .text\n"                                 \
      ".globl " #name                                        \
      "\n"                                                   \
      ".hidden " #name                                       \
      "\n"                                                   \
      ".type " #name                                         \
      ", @function\n"                                        \
      ".p2align 4\n" #name                                   \
      ":\n"                                                  \
      ".cfi_startproc\n"                                     \
      "endbr64\n"                                            \
      "mov rcsock_forward_" #name                            \
      "(%rip), %r11\n"                                       \
      "test %r11, %r11\n"                                    \
      "je 1f\n"                                              \
      "jmp *%r11\n"                                          \
      "1:\n"                                                 \
      "push %rdi\n"                                          \
      ".cfi_adjust_cfa_offset 8\n"                           \
      "push %rsi\n"                                          \
      ".cfi_adjust_cfa_offset 8\n"                           \
      "push %rdx\n"                                          \
      ".cfi_adjust_cfa_offset 8\n"                           \
      "push %rcx\n"                                          \
      ".cfi_adjust_cfa_offset 8\n"                           \
      "sub $8, %rsp\n"                                       \
      ".cfi_adjust_cfa_offset 8\n"                           \
      "lea 2f(%rip), %rdi\n"                                 \
      "call " #find                                          \
      "\n"                                                   \
      "mov %rax, rcsock_forward_" #name                      \
      "(%rip)\n"                                             \
      "mov %rax, %r11\n"                                     \
      "add $8, %rsp\n"                                       \
      ".cfi_adjust_cfa_offset -8\n"                          \
      "pop %rcx\n"                                           \
      ".cfi_adjust_cfa_offset -8\n"                          \
      "pop %rdx\n"                                           \
      ".cfi_adjust_cfa_offset -8\n"                          \
      "pop %rsi\n"                                           \
      ".cfi_adjust_cfa_offset -8\n"                          \
      "pop %rdi\n"                                           \
      ".cfi_adjust_cfa_offset -8\n"                          \
      "jmp *%r11\n"                                          \
      ".cfi_endproc\n"                                       \
      ".size " #name ", . - " #name                          \
      "\n"                                                   \
      ".popsection\n"                                        \
      ".pushsection .rodata\n"                               \
      "2: .string \"" #name                                  \
      "\"\n"                                                 \
      ".popsection\n"                                        \
      ".pushsection .data.rcsock_start, \"aw\", @progbits\n" \
      ".p2align 3\n"                                         \
      "rcsock_forward_" #name                                \
      ":\n"                                                  \
      ".quad 0\n"                                            \
      ".popsection\n")

#endif  // RCSOCK_LIB_BASE_OLD_GLIBC_FORWARD_H_
