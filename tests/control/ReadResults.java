import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;

/** Prints what a center publishes, read over JDBC: all tables, then the rows of each statement that is given. */
class ReadResults {
    public static void main(String[] words) throws SQLException {
        try (Connection connection = DriverManager.getConnection(words[0])) {
            try (ResultSet tables = connection.getMetaData().getTables(null, null, "%", null)) {
                while (tables.next()) {
                    System.out.println("table " + tables.getString("TABLE_NAME"));
                }
            }
            for (int number = 1; number < words.length; number++) {
                printRows(connection, words[number]);
            }
        }
    }

    private static void printRows(Connection connection, String query) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(query);
                ResultSet rows = statement.executeQuery()) {
            int columns = rows.getMetaData().getColumnCount();
            while (rows.next()) {
                StringBuilder line = new StringBuilder("row");
                for (int column = 1; column <= columns; column++) {
                    line.append(' ').append(rows.getString(column));
                }
                System.out.println(line);
            }
        }
    }
}
