#ifndef RCSOCK_LIB_BASE_START_DATA_H_
#define RCSOCK_LIB_BASE_START_DATA_H_

// For a variable that every process touches as it starts or ends. These
// variables stand together, in pages that the loader has written to already.
// The library's zeroed memory spans megabytes: a variable that stands alone
// there costs each process a page fault. Functions of start and end are
// [[gnu::cold]] for a similar reason: the linker puts cold functions together.
#define RCSOCK_START_DATA __attribute__((section(".data.rcsock_start")))

#endif  // RCSOCK_LIB_BASE_START_DATA_H_
