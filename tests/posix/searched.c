/* Libraries that find each other by DT_RPATH: built in several ways, for the
   cases dlopen_by_rpath of loader.cc. */
#include <dlfcn.h>

#if defined(NEEDED)
int Deepest(void) { return 7; }
#elif defined(PLUG)
int Deepest(void);
int FromPlug(void) { return Deepest(); }
#else
void *Load(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }

/* Returns what the plug says, or less than 0. */
int Through(const char *path) {
  void *plug = Load(path);
  int (*said)(void);
  if (plug == 0) return -1;
  said = (int (*)(void))dlsym(plug, "FromPlug");
  return said == 0 ? -2 : said();
}
#endif
