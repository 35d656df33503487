/* A loader that is not glibc's: as musl's, it ends with status 127 where
   LD_PRELOAD names our library.  Any program that it starts is cat.
   gcc -nostdlib -static-pie. */

static long call(long number, long a, const void* b, long c) {
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c)
                   : "rcx", "r11", "memory");
  return result;
}

static int begins(const char* text, const char* with) {
  while (*with != '\0' && *text == *with) ++text, ++with;
  return *with == '\0';
}

/* At the top of the stack: argc, argv, 0, environment, 0. */
__attribute__((used)) void start(char** stack) {
  char** at = stack + 1;
  char text[4096];
  while (*at++ != 0) {
  }
  for (; *at != 0; ++at) {
    if (!begins(*at, "LD_PRELOAD=")) continue;
    for (const char* name = *at; *name != '\0'; ++name) {
      /* (shim.so: as it is built by hand.) */
      if (begins(name, "rcsock_preload") || begins(name, "shim.so")) {
        call(1, 2, "ld_other: cannot load it\n", 25);
        call(231, 127, 0, 0);
      }
    }
  }
  for (;;) {
    const long n = call(0, 0, text, sizeof text);
    if (n <= 0) call(231, n == 0 ? 0 : 1, 0, 0);
    if (call(1, 1, text, n) != n) call(231, 2, 0, 0);
  }
}

__asm__(
    ".globl _start\n"
    "_start:\n"
    "  mov %rsp, %rdi\n"
    "  and $-16, %rsp\n"
    "  call start\n");
