/* Runs the scanner over cases from a file: each a length (4 bytes, little endian) and its text, in a block of
 * exactly that size and a NUL, so that a sanitizer sees every read beyond it. */
#include <stdio.h>

#include "scan.c"

int main(int count, char **words)
{
    FILE *file = count == 2 ? fopen(words[1], "rb") : NULL;
    State *state = scan_new();
    unsigned char head[4];
    long cases = 0, read = 0;
    if (!file || !state)
        return 2;
    while (fread(head, 1, 4, file) == 4) {
        size_t length = head[0] | head[1] << 8 | head[2] << 16 | (size_t)head[3] << 24;
        char *text = malloc(length + 1);
        int64_t most = (int64_t)length / 16 + 1;
        int64_t *rows = malloc((size_t)most * NUM_COLUMNS * sizeof *rows);
        if (!text || !rows || fread(text, 1, length, file) != length)
            return 2;
        text[length] = 0;
        read += scan(state, text, (int64_t)length, rows, most) >= 0;
        cases++;
        free(text), free(rows);
    }
    printf("%ld of %ld read\n", read, cases);
    scan_free(state);
    fclose(file);
    return 0;
}
