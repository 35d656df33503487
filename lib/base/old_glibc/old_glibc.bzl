"""Links what users get so that glibc 2.17 and every later one can load it."""

# Functions with a version before 2.18 where they lived then. glibc 2.34 moved
# the functions of libpthread and libdl into libc under new versions. Later
# glibcs still have the old versions, and libraries of the old names.
OLD_LIBRARIES = {
    "libdl.so.2": {
        "GLIBC_2.2.5": ["dladdr", "dlclose", "dlopen", "dlsym"],
        "GLIBC_2.3.3": ["dladdr1", "dlinfo"],
    },
    "libpthread.so.0": {
        "GLIBC_2.2.5": [
            "pthread_attr_setstacksize",
            "pthread_create",
            "pthread_detach",
            "pthread_join",
            "pthread_key_create",
            "pthread_mutex_trylock",
            "pthread_once",
            "pthread_setspecific",
            "pthread_sigmask",
            "pthread_testcancel",
        ],
        "GLIBC_2.3.3": ["pthread_condattr_setclock"],
        "GLIBC_2.12": ["pthread_setname_np"],
    },
}

_PACKAGE = "//lib/base/old_glibc:"

# For additional_linker_inputs and linkopts of a cc_binary. A library without a
# use leaves no trace.
OLD_GLIBC_INPUTS = [_PACKAGE + soname for soname in OLD_LIBRARIES]
OLD_GLIBC_LINKOPTS = ["-Wl,--as-needed"] + [
    "$(location " + one + ")"
    for one in OLD_GLIBC_INPUTS
]

def old_library(name, soname, versions):
    """An empty library for the linker, with the functions of `versions`.

    Args:
      name: the target
      soname: the name of the library that the loader takes in its place
      versions: the functions of each version
    """
    functions = [function for names in versions.values() for function in names]
    native.genrule(
        name = name + "_source",
        outs = [name + ".S"],
        cmd = "for name in " + " ".join(functions) + "; do " +
              "echo \".globl $$name; .type $$name, @function; $$name:\"; done >$@; " +
              "echo '.section .note.GNU-stack, \"\", @progbits' >>$@",
    )
    native.genrule(
        name = name + "_versions",
        outs = [name + ".map"],
        cmd = "echo '" + " ".join([
            version + " { global: " + " ".join([function + ";" for function in names]) + " };"
            for version, names in versions.items()
        ]) + "' >$@",
    )
    native.cc_binary(
        name = name,
        srcs = [name + ".S"],
        additional_linker_inputs = [name + ".map"],
        linkopts = [
            "-nostdlib",
            "-Wl,--as-needed",
            "-Wl,-soname," + soname,
            "-Wl,--version-script=$(location " + name + ".map)",
        ],
        linkshared = True,
        visibility = ["//visibility:public"],
    )
