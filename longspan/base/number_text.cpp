#include "longspan/base/number_text.h"

#include <fmt/format.h>

#include <cmath>

namespace longspan {

std::string number_text(double number) {
  return std::isnan(number) ? "nan" : fmt::format("{}", number);
}

}  // namespace longspan
