// Stands behind the preload: knows the queue pairs that librdmacm brings up,
// and puts them into error when the program asks, as a device does by itself.
#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <mutex>
#include <vector>

#undef ibv_modify_qp
#undef ibv_destroy_qp

namespace {

std::mutex mutex;
std::vector<ibv_qp*> all;

// (The preload has loaded it, where the program's own look-ups do not see it.)
template <class Function>
Function* Real(const char* name) {
  static void* const library =
      ::dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

int Modify(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  static auto* const real =
      Real<int(ibv_qp*, ibv_qp_attr*, int)>("ibv_modify_qp");
  return real(qp, attr, mask);
}

}  // namespace

extern "C" [[gnu::visibility("default")]] int ibv_modify_qp(ibv_qp* qp,
                                                            ibv_qp_attr* attr,
                                                            int mask) {
  const int result = Modify(qp, attr, mask);
  // (Of iWARP's librdmacm sets the first state alone.)
  if (result == 0) {
    const std::lock_guard lock(mutex);
    if (std::find(all.begin(), all.end(), qp) == all.end()) all.push_back(qp);
  }
  return result;
}

extern "C" [[gnu::visibility("default")]] int ibv_destroy_qp(ibv_qp* qp) {
  static auto* const real = Real<int(ibv_qp*)>("ibv_destroy_qp");
  const std::lock_guard lock(mutex);
  all.erase(std::remove(all.begin(), all.end(), qp), all.end());
  return real(qp);
}

// How many there were.
extern "C" [[gnu::visibility("default")]] int break_qps();
extern "C" int break_qps() {
  const std::lock_guard lock(mutex);
  int count = 0;
  for (ibv_qp* const qp : all) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    if (Modify(qp, &attr, IBV_QP_STATE) == 0) ++count;
  }
  all.clear();
  return count;
}
