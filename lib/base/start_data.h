#ifndef RCSOCK_LIB_BASE_START_DATA_H_
#define RCSOCK_LIB_BASE_START_DATA_H_

// For a variable that every process touches as it starts or ends, whether it
// ever connects or not: such ones stand together, in pages that the loader has
// written to already.  Zeroed memory of the library is megabytes (the table of
// descriptors), and each that stands alone there costs a process a page fault.
// (The functions of start and end are [[gnu::cold]] for the same reason: the
// linker puts those together.)
#define RCSOCK_START_DATA __attribute__((section(".data.rcsock_start")))

#endif  // RCSOCK_LIB_BASE_START_DATA_H_
