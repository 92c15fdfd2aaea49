#include "longspan/files/file_claim.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

namespace longspan {

FileClaim::FileClaim(const std::string& path, Kind kind) {
  constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  const bool reads = kind == Kind::kRead;
  // An exclusive lock on a network disk needs a file that is open for writing.
  file_ = Descriptor(::open(path.c_str(), (reads ? O_RDONLY : O_RDWR) | kFlags));
  if (file_ < 0) file_ = Descriptor(::open(path.c_str(), O_RDONLY | kFlags));
  if (file_ < 0) return;
  int result = 0;
  do {
    result = ::flock(file_, (reads ? LOCK_SH : LOCK_EX) | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  refused_ = result != 0 && errno == EWOULDBLOCK;
}

}  // namespace longspan
