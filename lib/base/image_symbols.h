#ifndef RCSOCK_LIB_BASE_IMAGE_SYMBOLS_H_
#define RCSOCK_LIB_BASE_IMAGE_SYMBOLS_H_

#include <link.h>

#include <cstdint>

namespace rcsock::base {

// The interposed dlsym() uses what is here.  A sanitizer or a malloc library
// calls dlsym() before its own functions work, and may define libc's names.  So
// no function here calls a function of libc but dladdr1(), which nobody
// replaces, and none waits.  AnyInheritedPath(), for dlopen(), does both.
// Sanitizers do not instrument this file.

// What a loaded program or library defines, read from its own tables: without
// the loader's lock, its memory, or a trace in dlerror().
class ImageSymbols {
 public:
  // The image must stay loaded.
  explicit ImageSymbols(const link_map* image);

  // The default version of `name`; null: it defines none.
  void* Find(const char* name) const;

  // Returns true if it defines a name, in any version, that `other` and `third`
  // define too.
  bool SharesNameWith(const ImageSymbols& other,
                      const ImageSymbols& third) const;

 private:
  enum class Version : std::uint8_t { kDefault, kAny };
  bool Defined(std::uint32_t index, Version version) const;
  // The index of the definition; 0: it has none.
  std::uint32_t Index(const char* name, Version version) const;
  std::uint32_t IndexByGnuHash(const char* name, Version version) const;
  std::uint32_t IndexByHash(const char* name, Version version) const;
  // Behind the last index that a table names.
  std::uint32_t End() const;

  ElfW(Addr) base_ = 0;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* strings_ = nullptr;
  const std::uint16_t* versions_ = nullptr;
  const std::uint32_t* gnu_hash_ = nullptr;  // DT_GNU_HASH
  const std::uint32_t* hash_ = nullptr;      // DT_HASH
};

// The image that contains `address`; null: none of the loader's.
const link_map* ImageAt(const void* address);

// The definition of `name` that follows `image` in the order of loading: what
// dlsym(RTLD_NEXT, name) says there.
void* FindBehind(const link_map* image, const char* name);

// strcmp() == 0.
bool SameText(const char* one, const char* other);

// strchr() != nullptr.
bool HasCharacter(const char* text, char one);

// It searches folders that it names itself (DT_RPATH, DT_RUNPATH).
bool HasSearchPath(const link_map* image);

// Returns true if a library names folders that the loader searches for what the
// libraries that it needs open: DT_RPATH without DT_RUNPATH.  The program's own
// are searched for every library, and do not count.
bool AnyInheritedPath();

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_IMAGE_SYMBOLS_H_
