// Drops the rights of root, for tests that run as root.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

namespace longspan::testing {

/// For its lifetime, root becomes an unprivileged user; for other users nothing changes.
class WithoutRights {
 public:
  WithoutRights() : was_root_(geteuid() == 0) {
    if (was_root_) REQUIRE(seteuid(kNobody) == 0);
  }
  ~WithoutRights() {
    if (was_root_) CHECK(seteuid(0) == 0);
  }
  WithoutRights(const WithoutRights&) = delete;
  WithoutRights& operator=(const WithoutRights&) = delete;

 private:
  static constexpr uid_t kNobody = 65534;
  const bool was_root_;
};

}  // namespace longspan::testing
