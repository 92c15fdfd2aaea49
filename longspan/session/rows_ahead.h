// The rows whose pixels are read before their computation.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "longspan/models/picture_features.h"
#include "longspan/session/pixel_reader.h"
#include "longspan/session/shared_tower.h"
#include "longspan/stages/row.h"

namespace longspan {

class RowsAhead {
 public:
  explicit RowsAhead(FramePatches patches) : reader_(std::move(patches)) {}

  /// Returns the reader of pixels for the towers of a session. This object must outlive the result.
  FramePatches patches() {
    return [this](const Picture& picture, int64_t t) { return reader_.take(picture, t); };
  }
  /// Announces this rank's frames of rows that have not been announced before. `num_passes`: passes
  /// over all of these rows, one after the other.
  void read(std::span<const Row> rows, const SharedTower& tower, int num_passes);

 private:
  PixelReader reader_;
  std::vector<std::weak_ptr<const RowPictures>> announced_;
};

}  // namespace longspan
