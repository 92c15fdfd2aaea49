#include "longspan/rollouts/whole_match.h"

#include "longspan/text/rust_call.h"

namespace longspan {

void WholeMatch::Free::operator()(LsrRegex* regex) const { lsr_regex_free(regex); }

WholeMatch::WholeMatch(std::string_view pattern) {
  LsrRegex* regex = nullptr;
  rust_call(lsr_regex_new, rust_view(pattern), &regex);
  regex_.reset(regex);
}

bool WholeMatch::matches(std::string_view text) const {
  bool matches = false;
  rust_call(lsr_regex_matches, regex_.get(), rust_view(text), &matches);
  return matches;
}

}  // namespace longspan
