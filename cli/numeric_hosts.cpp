// torch asks the server of names who connects to a store, for its log, at each end of each
// connection: the thread that serves the store, too, which answers nobody meanwhile. Where the
// server of names is silent that takes 5 seconds a time, or more. /etc/hosts does not help: the
// store's socket is of IPv6, and has other machines' addresses of IPv4, and 127.0.0.1, in that
// form. In this program addresses have no names.
#include <dlfcn.h>
#include <netdb.h>
#include <sys/socket.h>

extern "C" [[gnu::visibility("default")]] int getnameinfo(const sockaddr* address, socklen_t length,
                                                          char* host, socklen_t host_length,
                                                          char* service, socklen_t service_length,
                                                          int flags) {
  static const auto of_system =
      reinterpret_cast<decltype(&getnameinfo)>(dlsym(RTLD_NEXT, "getnameinfo"));
  return of_system(address, length, host, host_length, service, service_length,
                   flags | NI_NUMERICHOST);
}
