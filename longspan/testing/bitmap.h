// Picture files for tests.
#pragma once

#include <string>

namespace longspan::testing {

/// Returns a grey picture as a BMP file of 24 bits.
inline std::string bitmap(int width, int height, char grey = '\0') {
  std::string bytes = "BM";
  const auto number = [&](int value, int num_bytes) {
    for (int i = 0; i < num_bytes; ++i) bytes += static_cast<char>((value >> (8 * i)) & 0xFF);
  };
  const int header = 54, size = (3 * width + 3) / 4 * 4 * height;
  for (const int value : {header + size, 0, header, 40, width, height}) number(value, 4);
  number(1, 2);   // planes
  number(24, 2);  // bits of a pixel
  for (const int value : {0, size, 0, 0, 0, 0}) number(value, 4);
  return bytes + std::string(static_cast<size_t>(size), grey);
}

}  // namespace longspan::testing
