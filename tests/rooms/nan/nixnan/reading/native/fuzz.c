/* Runs both halves of lines.c over cases from a file: each a length (4 bytes, little endian) and its text, in a block
 * of exactly that size, so that a sanitizer sees every read beyond it. */
#include <stdio.h>

#include "lines.c"

static const Word KIND_WORDS[] = {{"NaN", 3}, {"infinity", 8}, {"NaN,subnormal", 13}};
static const Word LABEL_WORDS[] = {{"f16", 3}, {"f32", 3}};

int main(int count, char **words)
{
    FILE *file = count == 2 ? fopen(words[1], "rb") : NULL;
    Lines *lines = lines_new(7);
    Words table = {KIND_WORDS, LABEL_WORDS, 3, 2, {3, 5, 7, 11}};
    unsigned char head[4];
    long cases = 0, usual = 0;
    if (!file || !lines)
        return 2;
    while (fread(head, 1, 4, file) == 4) {
        size_t length = head[0] | head[1] << 8 | head[2] << 16 | (size_t)head[3] << 24;
        char *text = malloc(length ? length : 1);
        int64_t most = (int64_t)length + 1, others;
        int64_t *rows = malloc((length / (LEAST_LINE + 1) + 1) * NUM_COLUMNS * sizeof *rows);
        int64_t *rest = malloc((size_t)most * sizeof *rest);
        if (!text || !rows || !rest || fread(text, 1, length, file) != length)
            return 2;
        if (lines_count(lines, text, (int64_t)length) < 0)
            return 3;
        int64_t found = usual_lines(&table, text, (int64_t)length, rows, rest, most, &others);
        usual += found > 0 ? found : 0;
        if (++cases % 100 == 0)
            lines_clear(lines);
        else if (cases % 7 == 0)
            lines_forget(lines, cases % (lines_known(lines) + 1));
        free(text), free(rows), free(rest);
    }
    printf("%ld cases, %ld usual lines\n", cases, usual);
    lines_free(lines);
    fclose(file);
    return 0;
}
