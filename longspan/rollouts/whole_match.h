// Regular expressions that must match a whole text. No torch. (Backed by the `regex` crate, see
// rust/.)
#pragma once

#include <memory>
#include <string_view>

extern "C" {
struct LsrRegex;
}

namespace longspan {

/// Takes time that is linear in the text. The syntax has no look-around and no back-references.
class WholeMatch {
 public:
  /// Throws UserError with the place of the mistake in the pattern.
  explicit WholeMatch(std::string_view pattern);
  bool matches(std::string_view text) const;

 private:
  struct Free {
    void operator()(LsrRegex* regex) const;
  };
  std::unique_ptr<LsrRegex, Free> regex_;
};

}  // namespace longspan
