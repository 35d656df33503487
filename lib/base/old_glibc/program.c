// What a program needs beside later_calls.c.
//
// glibc runs a program's constructors itself from 2.34 on. Before, a part of the
// program did so, and __libc_start_main called it. Later versions call it too,
// in place of running the constructors.

typedef int Main(int, char**, char**);
typedef void Constructor(int, char**, char**);

extern Constructor* const __init_array_start[]
    __attribute__((visibility("hidden")));
extern Constructor* const __init_array_end[]
    __attribute__((visibility("hidden")));

static int RunConstructors(int argc, char** argv, char** environment) {
  for (Constructor* const* one = __init_array_start; one != __init_array_end;
       ++one) {
    (*one)(argc, argv, environment);
  }
  return 0;
}

int rcsock_libc_start_main(Main* program, int argc, char** argv,
                           Main* constructors, void (*destructors)(void),
                           void (*loaders)(void), void* stack_end);
__asm__(".symver rcsock_libc_start_main, __libc_start_main@GLIBC_2.2.5");

// The linker's crt1.o calls it.
int __libc_start_main(Main* program, int argc, char** argv, Main* constructors,
                      void (*destructors)(void), void (*loaders)(void),
                      void* stack_end);
int __libc_start_main(Main* program, int argc, char** argv, Main* constructors,
                      void (*destructors)(void), void (*loaders)(void),
                      void* stack_end) {
  (void)constructors;
  return rcsock_libc_start_main(program, argc, argv, RunConstructors,
                                destructors, loaders, stack_end);
}

// glibc 2.29 has versions of these that report errors in another way.
double rcsock_exp(double x);
double rcsock_log(double x);
double rcsock_pow(double x, double y);
__asm__(".symver rcsock_exp, exp@GLIBC_2.2.5");
__asm__(".symver rcsock_log, log@GLIBC_2.2.5");
__asm__(".symver rcsock_pow, pow@GLIBC_2.2.5");
double exp(double x);
double log(double x);
double pow(double x, double y);
double exp(double x) { return rcsock_exp(x); }
double log(double x) { return rcsock_log(x); }
double pow(double x, double y) { return rcsock_pow(x, y); }
