// A piece of a test that ends its process.
#pragma once

#include <functional>
#include <string>

namespace longspan::testing::accelerator {

struct ChildEnd {
  int status = 0;      // of exit; negative: the signal that ended it
  std::string errors;  // what it wrote to stderr
};

/// Runs `body` in a copy of this process, which has this thread alone: no tensors may be computed.
ChildEnd in_child(const std::function<void()>& body);

}  // namespace longspan::testing::accelerator
