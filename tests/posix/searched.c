/* Libraries that find each other by DT_RPATH: built in several ways, for the
   case dlopen_by_rpath of loader.cc. */
#include <dlfcn.h>

#if defined(PLUG)
int FromPlug(void) { return 7; }
#elif defined(PLAIN)
/* Returns what the plug says, or less than 0. */
int Through(const char *name) {
  void *plug = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  int (*said)(void);
  if (plug == 0) return -1;
  said = (int (*)(void))dlsym(plug, "FromPlug");
  return said == 0 ? -2 : said();
}
#endif
