// The type of a key's value without std::optional.
#pragma once

#include <optional>

namespace longspan {

template <class T>
struct WithoutOptional {
  using Type = T;
};
template <class T>
struct WithoutOptional<std::optional<T>> {
  using Type = T;
};

}  // namespace longspan
