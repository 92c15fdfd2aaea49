#include "longspan/testing/accelerator/window.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

namespace longspan::testing::accelerator {
namespace {

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(),
                          std::string("memory of the simulated accelerator: ") + what);
}

char* map(int file, size_t size, int protection) {
  void* const at = mmap(nullptr, size, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (at == MAP_FAILED) fail("mmap");
  return static_cast<char*>(at);
}

}  // namespace

Window::Window(const char* name, size_t size, int protection)
    : file_(memfd_create(name, MFD_CLOEXEC)), size_(size) {
  if (file_ < 0) fail("memfd_create");
  if (ftruncate(file_, static_cast<off_t>(size)) != 0) fail("ftruncate");
  front_ = map(file_, size, protection);
  back_ = map(file_, size, PROT_READ | PROT_WRITE);
}

void Window::protect(const char* begin, size_t size, int protection) const {
  if (size == 0) return;
  if (mprotect(const_cast<char*>(begin), size, protection) != 0) fail("mprotect");
}

void Window::release(const char* begin, size_t size) const {
  if (size == 0) return;
  if (fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin - front_,
                static_cast<off_t>(size)) != 0) {
    fail("fallocate");
  }
}

}  // namespace longspan::testing::accelerator
