#ifndef RCSOCK_LIB_BASE_OWN_FILE_H_
#define RCSOCK_LIB_BASE_OWN_FILE_H_

namespace rcsock::base {

// Opens a file that a variable of the environment names for rcsock to write: to
// append to the file (`append`), or to write it anew. Returns a descriptor; or
// -1, and in *why the reason for a person.
//
// Another user may have put something at that place. So a symbolic link is not
// followed. What is there must be a device; or a pipe or a regular file of one
// name, which belong to our own user. A link of /proc, or of /dev into /proc,
// names a descriptor of this process, and is written whatever it is. Nothing
// changes before these checks, and a pipe without a reader is not waited for.
int OpenToWrite(const char* path, bool append, const char** why);

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_OWN_FILE_H_
