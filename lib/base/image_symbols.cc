#include "lib/base/image_symbols.h"

#include <dlfcn.h>

#include <cstddef>

namespace rcsock::base {
namespace {

constexpr std::uint16_t kHidden = 0x8000;

// (glibc has made addresses of them, but in the kernel's own image.)
const void* At(const link_map* image, ElfW(Addr) value) {
  return reinterpret_cast<const void*>(
      value < image->l_addr ? value + image->l_addr : value);
}

std::uint32_t Hash(const char* name) {
  std::uint32_t hash = 5381;
  for (; *name != '\0'; ++name) {
    hash = hash * 33 + static_cast<unsigned char>(*name);
  }
  return hash;
}

bool IsInheritedPath(const dl_phdr_info& info) {
  bool old = false;
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    if (info.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto* one = reinterpret_cast<const ElfW(Dyn)*>(
        info.dlpi_addr + info.dlpi_phdr[i].p_vaddr);
    for (; one->d_tag != DT_NULL; ++one) {
      if (one->d_tag == DT_RUNPATH) return false;
      if (one->d_tag == DT_RPATH) old = true;
    }
  }
  return old;
}

}  // namespace

ImageSymbols::ImageSymbols(const link_map* image) {
  if (image == nullptr || image->l_ld == nullptr) return;
  base_ = image->l_addr;
  for (const ElfW(Dyn)* one = image->l_ld; one->d_tag != DT_NULL; ++one) {
    const void* at = At(image, one->d_un.d_ptr);
    switch (one->d_tag) {
      case DT_SYMTAB:
        symbols_ = static_cast<const ElfW(Sym)*>(at);
        break;
      case DT_STRTAB:
        strings_ = static_cast<const char*>(at);
        break;
      case DT_VERSYM:
        versions_ = static_cast<const std::uint16_t*>(at);
        break;
      case DT_GNU_HASH:
        hash_ = static_cast<const std::uint32_t*>(at);
        break;
      default:
        break;
    }
  }
}

bool ImageSymbols::Matches(std::uint32_t index, const char* name) const {
  const ElfW(Sym)& symbol = symbols_[index];
  return symbol.st_shndx != SHN_UNDEF && symbol.st_value != 0 &&
         ELF64_ST_TYPE(symbol.st_info) != STT_TLS &&
         ELF64_ST_TYPE(symbol.st_info) != STT_GNU_IFUNC &&
         (versions_ == nullptr || (versions_[index] & kHidden) == 0) &&
         SameText(strings_ + symbol.st_name, name);
}

void* ImageSymbols::Find(const char* name) const {
  if (symbols_ == nullptr || strings_ == nullptr || hash_ == nullptr ||
      hash_[0] == 0) {
    return nullptr;
  }
  const std::uint32_t buckets = hash_[0];
  const std::uint32_t first = hash_[1];
  const std::uint32_t* bucket =
      hash_ + 4 + hash_[2] * (sizeof(ElfW(Addr)) / sizeof *hash_);
  const std::uint32_t* chain = bucket + buckets;
  const std::uint32_t hash = Hash(name);
  std::uint32_t index = bucket[hash % buckets];
  if (index < first) return nullptr;
  for (;; ++index) {
    const std::uint32_t its = chain[index - first];
    if ((its | 1) == (hash | 1) && Matches(index, name)) {
      return reinterpret_cast<void*>(base_ + symbols_[index].st_value);
    }
    if ((its & 1) != 0) return nullptr;
  }
}

const link_map* ImageAt(const void* address) {
  Dl_info info;
  void* image = nullptr;
  if (::dladdr1(address, &info, &image, RTLD_DL_LINKMAP) == 0) return nullptr;
  return static_cast<const link_map*>(image);
}

void* FindBehind(const link_map* image, const char* name) {
  for (const link_map* one = image == nullptr ? nullptr : image->l_next;
       one != nullptr; one = one->l_next) {
    if (void* found = ImageSymbols(one).Find(name)) return found;
  }
  return nullptr;
}

bool SameText(const char* one, const char* other) {
  while (*one != '\0' && *one == *other) {
    ++one;
    ++other;
  }
  return *one == *other;
}

bool HasCharacter(const char* text, char one) {
  for (; *text != '\0'; ++text) {
    if (*text == one) return true;
  }
  return false;
}

bool AnyInheritedPath() {
  // Under the loader's lock: another thread may take a library away.  The
  // program comes first.
  struct Search {
    bool first = true;
    bool found = false;
  } search;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto* const to = static_cast<Search*>(data);
        if (!to->first && IsInheritedPath(*info)) to->found = true;
        to->first = false;
        return to->found ? 1 : 0;
      },
      &search);
  return search.found;
}

bool HasSearchPath(const link_map* image) {
  for (const ElfW(Dyn)* one = image->l_ld; one->d_tag != DT_NULL; ++one) {
    if (one->d_tag == DT_RPATH || one->d_tag == DT_RUNPATH) return true;
  }
  return false;
}

}  // namespace rcsock::base
