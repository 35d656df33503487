#ifndef RCSOCK_LIB_BASE_OWN_FILE_H_
#define RCSOCK_LIB_BASE_OWN_FILE_H_

namespace rcsock::base {

// Opens a file that rcsock is told to write by a variable of the environment,
// to append to it (`append`) or anew.  A descriptor, or -1 and in *why what a
// person is told.
//
// Another user may have put something at that place.  So a symbolic link is not
// followed, and what is there must be a regular file of one name, or a pipe, of
// our own user, or a device.  (A link of /proc, and those of /dev that lead
// there, is one of our own descriptors, whatever it is.)  Nothing is changed
// before that is known, and a pipe without a reader is not waited for.
int OpenToWrite(const char* path, bool append, const char** why);

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_OWN_FILE_H_
