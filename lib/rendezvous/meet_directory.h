#ifndef RCSOCK_LIB_RENDEZVOUS_MEET_DIRECTORY_H_
#define RCSOCK_LIB_RENDEZVOUS_MEET_DIRECTORY_H_

#include "lib/base/unique_fd.h"
#include "lib/rendezvous/rendezvous.h"

// The directory of RCSOCK_MEET_DIR, in which two ends meet whose connection
// joins two network namespaces.  The connecting end listens there, and the
// accepting end calls.  Others may write to the directory, and nothing in it is
// trusted.  No function lists more than a bounded part of it.
namespace rcsock::rendezvous::meet_directory {

// The most names for one connecting half.  A connection of another network may
// have an equal half, and others may take a name.
constexpr int kPlaces = 4;

// Whether the configuration names a directory.
bool Given();

// Lets `fd`, a socket that is not bound, listen under a name of `half`. Returns
// the place, or -errno.  A name always leads to a socket that listens, or to
// one that has ended.
int Publish(int fd, const Tuple& half, int backlog);
// Removes that name.  Call it while the socket still listens.
void Withdraw(const Tuple& half, int place);

// Returns a descriptor of the name, to be called, or none.
base::UniqueFd Find(const Tuple& half, int place);
// Connects `fd` to what Find has returned.  Returns 0 or -errno.
int Call(int fd, int found);

// Publishes a name, looks for it and withdraws it.  Returns 0 or an error
// number.
int TryOut();

}  // namespace rcsock::rendezvous::meet_directory

#endif  // RCSOCK_LIB_RENDEZVOUS_MEET_DIRECTORY_H_
