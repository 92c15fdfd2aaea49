// Runs a piece of a test that ends its process.
#pragma once

#include <functional>
#include <string>

namespace longspan::testing::accelerator {

struct ChildEnd {
  int status = 0;      // exit status; negative: the signal that ended the child
  std::string errors;  // its output on stderr
};

/// Runs `body` in a fork of this process, which has only this thread. So `body` must not compute on
/// tensors.
ChildEnd in_child(const std::function<void()>& body);

}  // namespace longspan::testing::accelerator
