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
  /// The uses of a row's pictures in a step.
  struct Uses {
    int num_passes;  // passes over all rows of the step
    int of_pass;     // consecutive uses of a row in a pass
  };
  /// Announces this rank's frames of rows that have not been announced before.
  void read(std::span<const Row> rows, const SharedTower& tower, const Uses& uses);

 private:
  PixelReader reader_;
  std::vector<std::weak_ptr<const RowPictures>> announced_;
};

}  // namespace longspan
