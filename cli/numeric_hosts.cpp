// torch does a reverse name lookup of both ends of each store connection for its log, also in the
// thread that serves the store, which answers no requests meanwhile. If the name server does not
// respond, each lookup takes 5 seconds or more. /etc/hosts does not help: the store's socket is
// IPv6, and sees IPv4 addresses, including 127.0.0.1, in that form. In this program addresses have
// no names.
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
