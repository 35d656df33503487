/* cat for i386, without any library: gcc -m32 -nostdlib -static. */

static int call(int number, int a, void* b, int c) {
  int result;
  __asm__ volatile("int $0x80"
                   : "=a"(result)
                   : "a"(number), "b"(a), "c"(b), "d"(c)
                   : "memory");
  return result;
}

void _start(void) {
  char text[4096];
  for (;;) {
    const int n = call(3, 0, text, sizeof text);
    if (n <= 0) call(1, n == 0 ? 0 : 1, 0, 0);
    if (call(4, 1, text, n) != n) call(1, 2, 0, 0);
  }
}
