// Runs a piece of a test that ends its process.
#pragma once

#include <functional>
#include <string>

namespace longspan::testing::accelerator {

struct ChildEnd {
  int status = 0;      // exit status; negative: the signal that ended the child
  std::string errors;  // its output on stderr
};

/// Runs `body` in a forked child of this process. The child has only the calling thread, so `body`
/// must not compute on tensors.
ChildEnd in_child(const std::function<void()>& body);

}  // namespace longspan::testing::accelerator
