// Pictures of Python's samples, named by files.
#pragma once

#include <string>
#include <vector>

#include "longspan/data/picture_encoding.h"
#include "longspan/data/picture_rows.h"
#include "longspan/rows/batch.h"

namespace longspan {

struct ModelConfig;
struct RowSettings;

class SessionPictures {
 public:
  /// Reads the tokenizer and the processor of the model's folder. Throws UserError.
  SessionPictures(const RowSettings& config, const ModelConfig& model);

  /// Completes a sample whose ids have one token for each feature of its pictures: adds the
  /// pictures, their features and positions. `name`: of the sample, for errors. Reads the files.
  /// Throws UserError.
  void attach(Sample& sample, const std::vector<std::string>& files, const std::string& name) const;

 private:
  PictureEncoding encoding_;
  PictureRows rows_;
};

}  // namespace longspan
