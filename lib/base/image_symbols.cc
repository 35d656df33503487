#include "lib/base/image_symbols.h"

#include <dlfcn.h>

#include <cstddef>

#include "lib/base/elf_hash.h"

namespace rcsock::base {
namespace {

constexpr std::uint16_t kHidden = 0x8000;

// glibc has turned these values into addresses, except in the kernel's image.
// That image may be linked for any address. Of the two readings of a value, the
// one nearer to the table is right.
const void* At(const link_map* image, ElfW(Addr) value) {
  const auto distance = [image](ElfW(Addr) address) {
    const auto table = reinterpret_cast<ElfW(Addr)>(image->l_ld);
    return address < table ? table - address : address - table;
  };
  const ElfW(Addr) moved = value + image->l_addr;
  return reinterpret_cast<const void*>(
      distance(moved) < distance(value) ? moved : value);
}

std::uint32_t GnuHash(const char* name) {
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
        gnu_hash_ = static_cast<const std::uint32_t*>(at);
        break;
      case DT_HASH:
        hash_ = static_cast<const std::uint32_t*>(at);
        break;
      case DT_JMPREL:
        calls_.first = static_cast<const ElfW(Rela)*>(at);
        break;
      case DT_PLTRELSZ:
        calls_.count = one->d_un.d_val / sizeof(ElfW(Rela));
        break;
      case DT_RELA:
        others_.first = static_cast<const ElfW(Rela)*>(at);
        break;
      case DT_RELASZ:
        others_.count = one->d_un.d_val / sizeof(ElfW(Rela));
        break;
      default:
        break;
    }
  }
}

bool ImageSymbols::Defined(std::uint32_t index, Version version) const {
  const ElfW(Sym)& symbol = symbols_[index];
  return symbol.st_shndx != SHN_UNDEF && symbol.st_value != 0 &&
         ELF64_ST_TYPE(symbol.st_info) != STT_TLS &&
         ELF64_ST_TYPE(symbol.st_info) != STT_GNU_IFUNC &&
         (version == Version::kAny || versions_ == nullptr ||
          (versions_[index] & kHidden) == 0);
}

void* ImageSymbols::Find(const char* name) const {
  const std::uint32_t index = Index(name, Version::kDefault);
  if (index == 0) return nullptr;
  return reinterpret_cast<void*>(base_ + symbols_[index].st_value);
}

bool ImageSymbols::ImportsAny(const char* const* names,
                              std::size_t count) const {
  return NameAny(calls_, names, count) || NameAny(others_, names, count);
}

bool ImageSymbols::NameAny(const Relocations& those, const char* const* names,
                           std::size_t count) const {
  if (those.first == nullptr || symbols_ == nullptr || strings_ == nullptr) {
    return false;
  }
  for (std::size_t i = 0; i < those.count; ++i) {
    // Most relocations of other kinds than calls have no symbol.
    const auto index = ELF64_R_SYM(those.first[i].r_info);
    if (index == 0) continue;
    const char* name = strings_ + symbols_[index].st_name;
    for (std::size_t k = 0; k < count; ++k) {
      if (SameText(name, names[k])) return true;
    }
  }
  return false;
}

bool ImageSymbols::SharesNameWith(const ImageSymbols& other,
                                  const ImageSymbols& third) const {
  const std::uint32_t end = other.End();
  for (std::uint32_t i = 1; i < end; ++i) {
    const char* name = other.strings_ + other.symbols_[i].st_name;
    if (other.Defined(i, Version::kDefault) &&
        Index(name, Version::kAny) != 0 &&
        third.Index(name, Version::kAny) != 0) {
      return true;
    }
  }
  return false;
}

std::uint32_t ImageSymbols::Index(const char* name, Version version) const {
  if (symbols_ == nullptr || strings_ == nullptr) return 0;
  if (gnu_hash_ != nullptr) return IndexByGnuHash(name, version);
  return hash_ != nullptr ? IndexByHash(name, version) : 0;
}

std::uint32_t ImageSymbols::IndexByGnuHash(const char* name,
                                           Version version) const {
  const std::uint32_t buckets = gnu_hash_[0];
  if (buckets == 0) return 0;
  const std::uint32_t first = gnu_hash_[1];
  const std::uint32_t* bucket =
      gnu_hash_ + 4 + gnu_hash_[2] * (sizeof(ElfW(Addr)) / sizeof *gnu_hash_);
  const std::uint32_t* chain = bucket + buckets;
  const std::uint32_t hash = GnuHash(name);
  std::uint32_t index = bucket[hash % buckets];
  if (index < first) return 0;
  for (;; ++index) {
    const std::uint32_t its = chain[index - first];
    if ((its | 1) == (hash | 1) && Defined(index, version) &&
        SameText(strings_ + symbols_[index].st_name, name)) {
      return index;
    }
    if ((its & 1) != 0) return 0;
  }
}

std::uint32_t ImageSymbols::IndexByHash(const char* name,
                                        Version version) const {
  const std::uint32_t buckets = hash_[0];
  if (buckets == 0) return 0;
  const std::uint32_t* bucket = hash_ + 2;
  const std::uint32_t* chain = bucket + buckets;
  for (std::uint32_t index = bucket[ElfHash(name) % buckets]; index != 0;
       index = chain[index]) {
    if (Defined(index, version) &&
        SameText(strings_ + symbols_[index].st_name, name)) {
      return index;
    }
  }
  return 0;
}

std::uint32_t ImageSymbols::End() const {
  if (symbols_ == nullptr || strings_ == nullptr) return 0;
  if (gnu_hash_ == nullptr) return hash_ != nullptr ? hash_[1] : 0;
  const std::uint32_t buckets = gnu_hash_[0];
  const std::uint32_t first = gnu_hash_[1];
  const std::uint32_t* bucket =
      gnu_hash_ + 4 + gnu_hash_[2] * (sizeof(ElfW(Addr)) / sizeof *gnu_hash_);
  std::uint32_t last = 0;
  for (std::uint32_t i = 0; i < buckets; ++i) {
    if (bucket[i] > last) last = bucket[i];
  }
  if (last < first) return 0;
  // The last entry of a chain has its lowest bit set.
  const std::uint32_t* chain = bucket + buckets;
  while ((chain[last - first] & 1) == 0) ++last;
  return last + 1;
}

const link_map* ImageAt(const void* address) {
  // dladdr1() searches all the image's symbols. glibc has the other call from
  // 2.35 on; before, lib/base/old_glibc answers that it finds nothing.
  dl_find_object object;
  if (::_dl_find_object(const_cast<void*>(address), &object) == 0) {
    return object.dlfo_link_map;
  }
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
  // dl_iterate_phdr holds the loader's lock: another thread may unload a
  // library. The program comes first.
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
