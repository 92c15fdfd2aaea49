#include "longspan/spec/rotary_spec.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace longspan {

std::string_view name_of(RopeScaling::Type type) {
  const auto* found =
      std::ranges::find(kRopeTypes, type, &std::pair<std::string_view, RopeScaling::Type>::second);
  if (found == std::end(kRopeTypes)) throw std::logic_error("a scaling of rotations has no name");
  return found->first;
}

}  // namespace longspan
