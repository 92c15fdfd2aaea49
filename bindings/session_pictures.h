// Pictures of Python's samples: files, decoded pictures, and the results of processors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "longspan/data/picture_encoding.h"
#include "longspan/data/picture_rows.h"
#include "longspan/models/picture_features.h"
#include "longspan/rows/batch.h"

namespace longspan {

struct ModelConfig;
struct RowSettings;

/// H, W: rows, columns of pixels. X: as in PixelValues.
struct GivenPicture {
  std::string file;   // empty: a picture in memory
  at::Tensor pixels;  // uint8 [H, W, 3] in RGB, or the patches of the grid, [h * w, X]
  PictureGrid grid;   // zeros: not patches
};

/// Returns the patches of a picture in memory, fp32 [h * w, X]. Thread-safe.
using HeldPixels = std::shared_ptr<const std::function<at::Tensor()>>;

/// The pictures in memory of a session's rows, by the names that stand for files in
/// Picture::files. Equal pictures have one name. Rows hold the pixels. Thread-safe.
class PicturesInMemory {
 public:
  /// Returns the pixels that are held already by this name, or the given ones.
  HeldPixels hold(const std::string& name, std::function<at::Tensor()> patches);
  /// Returns nullptr if no row holds pixels by this name.
  HeldPixels find(const std::string& name);

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<const std::function<at::Tensor()>>> pixels_;
};

class SessionPictures {
 public:
  /// Reads the tokenizer and the processor of the model's folder. Throws UserError.
  SessionPictures(const RowSettings& config, const ModelConfig& model);

  /// Completes a sample whose ids have one token for each feature of its pictures: adds the
  /// pictures, their features and positions. `name`: of the sample, for errors. Reads the files.
  /// Copies pictures in memory to `held`, which must exist as long as the sample's rows. Throws
  /// UserError.
  void attach(Sample& sample, const std::vector<GivenPicture>& pictures, const std::string& name,
              std::vector<HeldPixels>& held) const;
  /// Returns the reader of the samples' pictures. `of_files`: reads those of files.
  FramePatches patches(FramePatches of_files) const;

 private:
  /// Returns a decoded picture. `place`: begins each error.
  Picture decoded(const at::Tensor& pixels, const std::string& place,
                  std::vector<HeldPixels>& held) const;
  /// Returns a picture of patches.
  Picture processed(const GivenPicture& given, const std::string& place,
                    std::vector<HeldPixels>& held) const;
  Picture in_memory(const PictureGrid& grid, uint64_t checksum, std::function<at::Tensor()> patches,
                    std::vector<HeldPixels>& held) const;

  const std::shared_ptr<PicturesInMemory> memory_ = std::make_shared<PicturesInMemory>();
  PictureEncoding encoding_;
  PictureRows rows_;
};

}  // namespace longspan
