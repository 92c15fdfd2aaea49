#include "longspan/rows/picture.h"

#include <algorithm>

namespace longspan {

int64_t RowPictures::add(const Picture& picture) {
  const auto found = std::ranges::find(pictures, picture);
  if (found != pictures.end()) return first_feature[static_cast<size_t>(found - pictures.begin())];
  pictures.push_back(picture);
  first_feature.push_back(num_features);
  num_features += picture.num_features;
  return first_feature.back();
}

}  // namespace longspan
