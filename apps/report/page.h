// Pages that one reads in a browser, all with one look: one file, with nothing fetched and no scripts. They
// fit a window of 1,280 pixels and a phone, and follow the reader's choice of a light or a dark ground.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/report/chart.h"

namespace kvasir {

// Texts in tables are made safe here; those of the first columns are names, the others figures.
struct PageTable {
  std::vector<std::string> heads;
  std::vector<std::vector<std::string>> rows;
  size_t names = 1;                 // columns from the left that hold names
  bool texts = false;               // no column holds figures
  std::vector<size_t> strong = {};  // rows that the table is about
};

class Page {
 public:
  explicit Page(const std::string& title);

  // `id`: where a link leads to; `small`: below the other headings.
  void heading(const std::string& text, const std::string& id = "", bool small = false);
  void paragraph(const std::string& text, bool dim = false);
  // Names, and where they lead to.
  void links(const std::vector<std::pair<std::string, std::string>>& links);
  // What a program printed, line by line.
  void printed(const std::string& text);
  void table(const PageTable& table);
  // Side by side where there is room.
  void charts(const std::vector<DrawnChart>& charts);
  // What follows until fold_end() can be folded away.
  void fold(const std::string& name, bool open);
  void fold_end();
  // A table of names and values.
  void settings(const std::vector<std::pair<std::string, std::string>>& settings);

  std::string text() const { return text_ + "</main></body></html>\n"; }

 private:
  std::string text_;
  size_t tables_ = 0;
};

// A name of a file: letters, digits and dashes of `text`.
std::string file_name_of(const std::string& text);

}  // namespace kvasir
