#ifndef RCSOCK_LIB_BASE_IMAGE_SYMBOLS_H_
#define RCSOCK_LIB_BASE_IMAGE_SYMBOLS_H_

#include <link.h>

#include <cstddef>
#include <cstdint>

namespace rcsock::base {

// The interposed dlsym() uses these functions. A sanitizer or a malloc library
// calls dlsym() before its own functions work, and may define libc's names. So
// no function here waits, or calls a function of libc but _dl_find_object() and
// dladdr1(), which no library replaces. AnyInheritedPath(), for dlopen(), does
// both. Sanitizers do not instrument this file.

// What a loaded program or library defines, read from its own tables. Takes no
// lock and no memory of the loader's, and leaves no trace in dlerror().
class ImageSymbols {
 public:
  // `image` must stay loaded.
  explicit ImageSymbols(const link_map* image);

  // Returns the default version of `name`, or null if the image defines none.
  void* Find(const char* name) const;

  // Returns true if the image asks the loader for one of these names.
  bool ImportsAny(const char* const* names, std::size_t count) const;

  // Returns true if the image defines a name, in any version, that `other` and
  // `third` define too.
  bool SharesNameWith(const ImageSymbols& other,
                      const ImageSymbols& third) const;

 private:
  enum class Version : std::uint8_t { kDefault, kAny };
  bool Defined(std::uint32_t index, Version version) const;
  // Returns the index of the definition, or 0.
  std::uint32_t Index(const char* name, Version version) const;
  std::uint32_t IndexByGnuHash(const char* name, Version version) const;
  std::uint32_t IndexByHash(const char* name, Version version) const;
  // Returns the index behind the last that a table names.
  std::uint32_t End() const;

  struct Relocations {
    const ElfW(Rela) * first = nullptr;
    std::size_t count = 0;
  };
  bool NameAny(const Relocations& those, const char* const* names,
               std::size_t count) const;

  ElfW(Addr) base_ = 0;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* strings_ = nullptr;
  const std::uint16_t* versions_ = nullptr;
  const std::uint32_t* gnu_hash_ = nullptr;  // DT_GNU_HASH
  const std::uint32_t* hash_ = nullptr;      // DT_HASH
  Relocations calls_;                        // DT_JMPREL
  Relocations others_;                       // DT_RELA
};

// Returns the image that contains `address`. Null: no image of the loader's.
const link_map* ImageAt(const void* address);

// Returns the definition of `name` that follows `image` in the order of
// loading, as dlsym(RTLD_NEXT, name) does there.
void* FindBehind(const link_map* image, const char* name);

// strcmp() == 0.
bool SameText(const char* one, const char* other);

// strchr() != nullptr.
bool HasCharacter(const char* text, char one);

// Returns true if the image names folders to search (DT_RPATH, DT_RUNPATH).
bool HasSearchPath(const link_map* image);

// Returns true if a library names folders in which the loader also searches
// what the libraries that it needs open: DT_RPATH without DT_RUNPATH. The
// program's own folders serve every library, and do not count.
bool AnyInheritedPath();

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_IMAGE_SYMBOLS_H_
